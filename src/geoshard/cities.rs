//! Large cities: names by which people know where a place or a geoshard is, homes of simulated people, load of the sample map.

use super::map::GeoshardMap;
use crate::base::geo::{EARTH_RADIUS_METRES, GeoPoint};

/// A place nearer than this many kilometres to a city is called by its name: the middle of the S2 cell of level 7 that holds it is.
const IN_CITY: f64 = 65.0;

/// A place: its name, latitude and longitude in degrees, and the thousands of people who live in and around it.
#[derive(Debug, Clone, Copy)]
pub struct City(pub &'static str, pub f64, pub f64, pub u32);

/// The larger cities of the world, from general knowledge; rounded.
#[rustfmt::skip]
pub const CITIES: &[City] = &[
    City("Tokyo", 35.68, 139.69, 37000), City("Delhi", 28.61, 77.21, 32000), City("Shanghai", 31.23, 121.47, 28500),
    City("Dhaka", 23.81, 90.41, 22500), City("São Paulo", -23.55, -46.63, 22400), City("Mexico City", 19.43, -99.13, 22000),
    City("Cairo", 30.04, 31.24, 21700), City("Beijing", 39.90, 116.41, 21300), City("Mumbai", 19.08, 72.88, 20900),
    City("Osaka", 34.69, 135.50, 19000), City("New York", 40.71, -74.01, 18900), City("Chongqing", 29.56, 106.55, 16900),
    City("Karachi", 24.86, 67.01, 16800), City("Kinshasa", -4.32, 15.31, 15600), City("Lagos", 6.52, 3.38, 15400),
    City("Istanbul", 41.01, 28.98, 15600), City("Buenos Aires", -34.60, -58.38, 15300), City("Kolkata", 22.57, 88.36, 15100),
    City("Manila", 14.60, 120.98, 14400), City("Guangzhou", 23.13, 113.26, 13900), City("Tianjin", 39.13, 117.20, 14000),
    City("Lahore", 31.55, 74.34, 13500), City("Rio de Janeiro", -22.91, -43.17, 13600), City("Bangalore", 12.97, 77.59, 13200),
    City("Shenzhen", 22.54, 114.06, 12800), City("Moscow", 55.76, 37.62, 12600), City("Los Angeles", 34.05, -118.24, 12500),
    City("Chennai", 13.08, 80.27, 11500), City("Bogotá", 4.71, -74.07, 11300), City("Paris", 48.86, 2.35, 11200),
    City("Jakarta", -6.21, 106.85, 11100), City("Lima", -12.05, -77.04, 11000), City("Bangkok", 13.76, 100.50, 10900),
    City("Hyderabad", 17.39, 78.49, 10500), City("Seoul", 37.57, 126.98, 10000), City("Nagoya", 35.18, 136.91, 9600),
    City("London", 51.51, -0.13, 9600), City("Chengdu", 30.57, 104.07, 9500), City("Nanjing", 32.06, 118.80, 9400),
    City("Tehran", 35.69, 51.39, 9400), City("Ho Chi Minh City", 10.82, 106.63, 9100), City("Luanda", -8.84, 13.23, 9000),
    City("Chicago", 41.88, -87.63, 8900), City("Xi'an", 34.34, 108.94, 8700), City("Wuhan", 30.59, 114.31, 8600),
    City("Ahmedabad", 23.02, 72.57, 8500), City("Kuala Lumpur", 3.15, 101.70, 8400), City("Hangzhou", 30.27, 120.15, 8000),
    City("Suzhou", 31.30, 120.58, 7900), City("Surat", 21.17, 72.83, 7800), City("Dar es Salaam", -6.79, 39.21, 7400),
    City("Baghdad", 33.31, 44.37, 7500), City("Hong Kong", 22.32, 114.17, 7600), City("Shenyang", 41.81, 123.43, 7500),
    City("Foshan", 23.02, 113.12, 7500), City("Dongguan", 23.02, 113.75, 7500), City("Riyadh", 24.71, 46.68, 7500),
    City("Pune", 18.52, 73.86, 7000), City("Santiago", -33.45, -70.67, 6900), City("Madrid", 40.42, -3.70, 6700),
    City("Houston", 29.76, -95.37, 6600), City("Dallas", 32.78, -96.80, 6500), City("Toronto", 43.65, -79.38, 6300),
    City("Miami", 25.76, -80.19, 6200), City("Belo Horizonte", -19.92, -43.94, 6200), City("Khartoum", 15.50, 32.56, 6200),
    City("Johannesburg", -26.20, 28.05, 6100), City("Singapore", 1.35, 103.82, 6000), City("Harbin", 45.80, 126.53, 5900),
    City("Qingdao", 36.07, 120.38, 5900), City("Atlanta", 33.75, -84.39, 5900), City("Dalian", 38.91, 121.61, 5800),
    City("Philadelphia", 39.95, -75.17, 5800), City("Barcelona", 41.39, 2.17, 5700), City("Yangon", 16.87, 96.20, 5600),
    City("Jinan", 36.65, 117.12, 5600), City("Zhengzhou", 34.75, 113.63, 5600), City("Fukuoka", 33.59, 130.40, 5500),
    City("Alexandria", 31.20, 29.92, 5600), City("Saint Petersburg", 59.93, 30.34, 5600), City("Abidjan", 5.36, -4.01, 5500),
    City("Guadalajara", 20.66, -103.35, 5400), City("Washington", 38.91, -77.04, 5400), City("Ankara", 39.93, 32.86, 5300),
    City("Chittagong", 22.36, 91.78, 5300), City("Melbourne", -37.81, 144.96, 5200), City("Sydney", -33.87, 151.21, 5200),
    City("Nairobi", -1.29, 36.82, 5100), City("Hanoi", 21.03, 105.85, 5100), City("Monterrey", 25.69, -100.32, 5000),
    City("Brasília", -15.79, -47.88, 4900), City("Changsha", 28.23, 112.94, 4800), City("Jeddah", 21.49, 39.19, 4800),
    City("Cape Town", -33.92, 18.42, 4800), City("Kunming", 25.04, 102.71, 4600), City("Changchun", 43.82, 125.32, 4600),
    City("Ürümqi", 43.83, 87.62, 4500), City("Boston", 42.36, -71.06, 4900), City("Phoenix", 33.45, -112.07, 4900),
    City("Shantou", 23.35, 116.68, 4500), City("Hefei", 31.82, 117.23, 4400), City("Casablanca", 33.57, -7.59, 3800),
    City("Kabul", 34.56, 69.21, 4600), City("Addis Ababa", 9.03, 38.74, 5400), City("Kano", 12.00, 8.52, 4300),
    City("Ibadan", 7.38, 3.95, 3900), City("Accra", 5.60, -0.19, 4000), City("Kumasi", 6.69, -1.62, 3800),
    City("Dakar", 14.72, -17.47, 3900), City("Douala", 4.05, 9.77, 4000), City("Yaoundé", 3.85, 11.50, 4500),
    City("Kampala", 0.35, 32.58, 4000), City("Antananarivo", -18.88, 47.51, 3900), City("Bamako", 12.64, -8.00, 3000),
    City("Ouagadougou", 12.37, -1.52, 3200), City("Lusaka", -15.39, 28.32, 3200), City("Harare", -17.83, 31.05, 2500),
    City("Maputo", -25.97, 32.57, 2800), City("Durban", -29.86, 31.02, 3200), City("Pretoria", -25.75, 28.19, 2800),
    City("Mogadishu", 2.05, 45.32, 2700), City("Algiers", 36.75, 3.06, 3900), City("Tunis", 36.81, 10.18, 2700),
    City("Tripoli", 32.89, 13.19, 1800), City("Lubumbashi", -11.66, 27.48, 2800), City("Brazzaville", -4.26, 15.24, 2600),
    City("Abuja", 9.06, 7.49, 3800), City("Port Harcourt", 4.82, 7.05, 3500), City("Conakry", 9.64, -13.58, 2100),
    City("Faisalabad", 31.42, 73.08, 3700), City("Rawalpindi", 33.57, 73.02, 3500), City("Peshawar", 34.01, 71.58, 2400),
    City("Jaipur", 26.91, 75.79, 4200), City("Lucknow", 26.85, 80.95, 3900), City("Kanpur", 26.45, 80.33, 3200),
    City("Nagpur", 21.15, 79.09, 3000), City("Indore", 22.72, 75.86, 3300), City("Patna", 25.59, 85.14, 2600),
    City("Kochi", 9.93, 76.27, 3300), City("Coimbatore", 11.02, 76.96, 3000), City("Visakhapatnam", 17.69, 83.22, 2300),
    City("Colombo", 6.93, 79.86, 2500), City("Kathmandu", 27.72, 85.32, 1600), City("Mandalay", 21.96, 96.09, 1500),
    City("Surabaya", -7.26, 112.75, 3000), City("Bandung", -6.92, 107.62, 2600), City("Medan", 3.60, 98.67, 2400),
    City("Makassar", -5.15, 119.43, 1700), City("Semarang", -6.97, 110.42, 1900), City("Palembang", -2.99, 104.76, 1900),
    City("Cebu", 10.32, 123.89, 3000), City("Davao", 7.19, 125.46, 1900), City("Phnom Penh", 11.56, 104.92, 2300),
    City("Da Nang", 16.05, 108.21, 1300), City("Taipei", 25.03, 121.57, 7000), City("Kaohsiung", 22.63, 120.30, 2800),
    City("Busan", 35.18, 129.08, 3500), City("Daegu", 35.87, 128.60, 2400), City("Pyongyang", 39.04, 125.76, 3100),
    City("Sapporo", 43.06, 141.35, 2700), City("Sendai", 38.27, 140.87, 2300), City("Hiroshima", 34.39, 132.46, 2100),
    City("Ulaanbaatar", 47.89, 106.91, 1700), City("Almaty", 43.24, 76.89, 2200), City("Tashkent", 41.30, 69.24, 3000),
    City("Baku", 40.41, 49.87, 2400), City("Tbilisi", 41.72, 44.79, 1200), City("Yerevan", 40.18, 44.51, 1100),
    City("Mashhad", 36.26, 59.62, 3300), City("Isfahan", 32.65, 51.67, 2200), City("Shiraz", 29.59, 52.58, 1700),
    City("Dubai", 25.20, 55.27, 3500), City("Kuwait City", 29.38, 47.98, 3200), City("Doha", 25.29, 51.53, 2400),
    City("Muscat", 23.59, 58.41, 1600), City("Sana'a", 15.37, 44.19, 3300), City("Aleppo", 36.20, 37.13, 2100),
    City("Damascus", 33.51, 36.29, 2500), City("Beirut", 33.89, 35.50, 2400), City("Amman", 31.95, 35.93, 2200),
    City("Tel Aviv", 32.09, 34.78, 4400), City("Basra", 30.51, 47.78, 1400), City("Izmir", 38.42, 27.14, 3100),
    City("Bursa", 40.19, 29.06, 2100), City("Adana", 37.00, 35.32, 1900), City("Athens", 37.98, 23.73, 3200),
    City("Rome", 41.90, 12.50, 4300), City("Milan", 45.46, 9.19, 5300), City("Naples", 40.85, 14.27, 3100),
    City("Turin", 45.07, 7.69, 1800), City("Berlin", 52.52, 13.41, 4500), City("Hamburg", 53.55, 9.99, 2600),
    City("Munich", 48.14, 11.58, 2600), City("Cologne", 50.94, 6.96, 3600), City("Essen", 51.46, 7.01, 5000),
    City("Frankfurt", 50.11, 8.68, 2700), City("Stuttgart", 48.78, 9.18, 2700), City("Amsterdam", 52.37, 4.90, 2500),
    City("Rotterdam", 51.92, 4.48, 2700), City("Brussels", 50.85, 4.35, 2700), City("Lyon", 45.76, 4.84, 2300),
    City("Marseille", 43.30, 5.37, 1900), City("Lille", 50.63, 3.06, 1500), City("Toulouse", 43.60, 1.44, 1400),
    City("Vienna", 48.21, 16.37, 2400), City("Zürich", 47.38, 8.54, 1500), City("Prague", 50.08, 14.44, 2200),
    City("Warsaw", 52.23, 21.01, 3100), City("Katowice", 50.26, 19.02, 2700), City("Budapest", 47.50, 19.04, 2900),
    City("Bucharest", 44.43, 26.10, 2300), City("Sofia", 42.70, 23.32, 1700), City("Belgrade", 44.79, 20.45, 1700),
    City("Kyiv", 50.45, 30.52, 3300), City("Kharkiv", 49.99, 36.23, 1700), City("Odesa", 46.48, 30.73, 1300),
    City("Minsk", 53.90, 27.57, 2200), City("Stockholm", 59.33, 18.07, 2300), City("Copenhagen", 55.68, 12.57, 2100),
    City("Oslo", 59.91, 10.75, 1500), City("Helsinki", 60.17, 24.94, 1500), City("Dublin", 53.35, -6.26, 1900),
    City("Manchester", 53.48, -2.24, 3300), City("Birmingham", 52.49, -1.89, 2900), City("Leeds", 53.80, -1.55, 2300),
    City("Glasgow", 55.86, -4.25, 1800), City("Lisbon", 38.72, -9.14, 2900), City("Porto", 41.16, -8.63, 1700),
    City("Valencia", 39.47, -0.38, 1700), City("Seville", 37.39, -5.98, 1500), City("Reykjavík", 64.15, -21.94, 240),
    City("Novosibirsk", 55.03, 82.92, 1700), City("Yekaterinburg", 56.84, 60.61, 1600), City("Kazan", 55.80, 49.11, 1300),
    City("Nizhny Novgorod", 56.30, 43.94, 1300), City("Samara", 53.20, 50.15, 1200), City("Rostov-on-Don", 47.24, 39.70, 1200),
    City("Krasnoyarsk", 56.01, 92.87, 1200), City("Vladivostok", 43.12, 131.89, 700), City("Irkutsk", 52.29, 104.28, 650),
    City("San Francisco", 37.77, -122.42, 4700), City("San Jose", 37.34, -121.89, 2000), City("San Diego", 32.72, -117.16, 3300),
    City("Seattle", 47.61, -122.33, 4000), City("Portland", 45.52, -122.68, 2500), City("Denver", 39.74, -104.99, 2900),
    City("Las Vegas", 36.17, -115.14, 2300), City("Salt Lake City", 40.76, -111.89, 1300), City("Minneapolis", 44.98, -93.27, 3700),
    City("Detroit", 42.33, -83.05, 4300), City("Cleveland", 41.50, -81.69, 2100), City("Pittsburgh", 40.44, -80.00, 2400),
    City("Saint Louis", 38.63, -90.20, 2800), City("Kansas City", 39.10, -94.58, 2200), City("Nashville", 36.16, -86.78, 2000),
    City("Charlotte", 35.23, -80.84, 2700), City("Tampa", 27.95, -82.46, 3200), City("Orlando", 28.54, -81.38, 2700),
    City("New Orleans", 29.95, -90.07, 1300), City("San Antonio", 29.42, -98.49, 2600), City("Austin", 30.27, -97.74, 2400),
    City("Honolulu", 21.31, -157.86, 1000), City("Anchorage", 61.22, -149.90, 400), City("Montréal", 45.50, -73.57, 4300),
    City("Vancouver", 49.28, -123.12, 2700), City("Calgary", 51.05, -114.07, 1600), City("Edmonton", 53.55, -113.49, 1500),
    City("Ottawa", 45.42, -75.70, 1500), City("Puebla", 19.04, -98.21, 3300), City("Tijuana", 32.51, -117.04, 2300),
    City("León", 21.12, -101.68, 1900), City("Guatemala City", 14.63, -90.51, 3100), City("San Salvador", 13.69, -89.22, 1800),
    City("Tegucigalpa", 14.07, -87.19, 1500), City("Managua", 12.11, -86.24, 1400), City("San José", 9.93, -84.08, 1500),
    City("Panama City", 8.98, -79.52, 2000), City("Havana", 23.11, -82.37, 2100), City("Santo Domingo", 18.49, -69.93, 3500),
    City("Port-au-Prince", 18.54, -72.34, 3000), City("San Juan", 18.47, -66.11, 2400), City("Kingston", 17.97, -76.79, 1200),
    City("Caracas", 10.48, -66.90, 2900), City("Maracaibo", 10.65, -71.64, 2300), City("Medellín", 6.24, -75.58, 4100),
    City("Cali", 3.45, -76.53, 2900), City("Barranquilla", 10.97, -74.80, 2300), City("Quito", -0.18, -78.47, 2000),
    City("Guayaquil", -2.19, -79.89, 3200), City("La Paz", -16.49, -68.12, 1900), City("Santa Cruz", -17.78, -63.18, 1800),
    City("Asunción", -25.26, -57.58, 3500), City("Montevideo", -34.90, -56.16, 1800), City("Córdoba", -31.42, -64.18, 1600),
    City("Rosario", -32.94, -60.64, 1600), City("Mendoza", -32.89, -68.85, 1200), City("Valparaíso", -33.05, -71.61, 1000),
    City("Porto Alegre", -30.03, -51.23, 4200), City("Curitiba", -25.43, -49.27, 3800), City("Salvador", -12.97, -38.50, 4000),
    City("Recife", -8.05, -34.88, 4300), City("Fortaleza", -3.73, -38.52, 4200), City("Goiânia", -16.69, -49.25, 2800),
    City("Campinas", -22.91, -47.06, 3400), City("Belém", -1.46, -48.50, 2400), City("Manaus", -3.12, -60.02, 2300),
    City("Brisbane", -27.47, 153.03, 2600), City("Perth", -31.95, 115.86, 2200), City("Adelaide", -34.93, 138.60, 1400),
    City("Auckland", -36.85, 174.76, 1700), City("Wellington", -41.29, 174.78, 420), City("Suva", -18.14, 178.44, 300),
    City("Port Moresby", -9.44, 147.18, 400), City("Nouméa", -22.27, 166.44, 180), City("Papeete", -17.54, -149.57, 130),
];

/// The largest city in each geoshard, in the order of [`GeoshardMap::shards`]; `None` where the list has none.
pub fn largest_cities(map: &GeoshardMap) -> Vec<Option<&'static str>> {
    largest(map).into_iter().map(|city| city.map(|City(name, ..)| *name)).collect()
}

/// As [`largest_cities`], with where they are.
pub(crate) fn largest(map: &GeoshardMap) -> Vec<Option<&'static City>> {
    let mut largest: Vec<Option<&City>> = vec![None; map.shards().len()];
    for city in CITIES {
        let City(_, lat, lon, people) = city;
        let Ok(point) = GeoPoint::new(*lat, *lon) else { continue };
        let known = &mut largest[map.locate_index(point)];
        if known.is_none_or(|City(.., most)| most < people) {
            *known = Some(city);
        }
    }
    largest
}

/// A place by the nearest city of these: `Paris`, or `140 km from Paris`.
pub fn name(at: GeoPoint) -> String {
    let distances = CITIES.iter().map(|city| (distance(at, city), city));
    let Some((distance, City(city, ..))) = distances.min_by(|(a, _), (b, _)| a.total_cmp(b)) else {
        return String::new();
    };
    if distance < IN_CITY {
        (*city).to_owned()
    } else {
        format!("{:.0} km from {city}", (distance / 10.0).round() * 10.0)
    }
}

/// Kilometres along the globe.
fn distance(at: GeoPoint, City(_, lat, lon, _): &City) -> f64 {
    let [one, other] = [at.lat(), *lat].map(f64::to_radians);
    let across = (at.lon() - lon).to_radians();
    let half = |angle: f64| (angle / 2.0).sin().powi(2);
    2.0 * EARTH_RADIUS_METRES / 1000.0
        * (half(one - other) + one.cos() * other.cos() * half(across)).sqrt().min(1.0).asin()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_geoshard_is_named_after_its_largest_city() {
        let map = GeoshardMap::load(Path::new("config/map-55.json")).unwrap();
        let cities = largest_cities(&map);
        let of = |lat, lon| cities[map.locate_index(GeoPoint::new(lat, lon).unwrap())];
        assert_eq!(of(35.68, 139.69), Some("Tokyo"));
        assert_eq!(of(6.6, 3.4), Some("Lagos"));
        assert!(cities.iter().flatten().count() > 50, "{cities:?}");
        // Every city that stands for a geoshard is in it, and every city is on the globe.
        for (number, city) in largest(&map).into_iter().enumerate() {
            let Some(City(name, lat, lon, _)) = city else { continue };
            assert_eq!(map.locate_index(GeoPoint::new(*lat, *lon).unwrap()), number, "{name}");
        }
    }

    #[test]
    fn a_place_is_called_by_the_nearest_city() {
        for (lat, lon, expected) in [
            (48.7, 2.2, "Paris"),
            (48.0, 2.35, "100 km from Paris"),
            // Over the antimeridian.
            (-18.1, -179.0, "270 km from Suva"),
            (90.0, 0.0, "2870 km from Reykjavík"),
        ] {
            assert_eq!(name(GeoPoint::new(lat, lon).unwrap()), expected);
        }
    }
}
